"use strict";
// A page that was opened as a file may not start a worker: the search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inner);
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
