"""The ClientApp: what a site's SuperNode starts for every message. It knows the way to `Node` and nothing else."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Hand the order to the site; every kind of order comes this way."""
    from fedprior.flower import messages
    from fedprior.flower.codec import RejectedError
    from fedprior.flower.node import Node
    from fedprior.flower.orders import Reply

    own = context.node_config
    places = Path(str(own["table"])), Path(str(own["state"]))
    node = Node(str(own["site"]), *places, int(own.get("min-class-rows", 0)))
    try:
        document, arrays = messages.unpack(message.content)
        reply = node.answer(document, arrays)
    except RejectedError:
        reply = Reply({"refused": "order"})
    except Exception:  # such as a disk that is too full for the site's own log: no text may travel
        reply = Reply({"refused": "internal"})
    return Message(messages.pack(reply.document, reply.arrays), reply_to=message)
