"""Called by mkdocs while it builds the site.

Formulas become MathML, which needs no script, no fonts and no network. `folder/*.md` in the navigation becomes the
pages of that folder.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

SHIM = "https://unpkg.com/iframe-worker/shim"
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>',
    re.DOTALL,
)

SPACING = (
    (r"<m([io])>&#x0007E;</m\1>", "<mo>&#x0223C;</mo>"),  # a relation, not an accent or a variable
    (r'<mi mathvariant="script">N</mi>', "<mi>&#x1D4A9;</mi>"),  # browsers know no other variant than "normal"
    (r"<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>'),  # both bars of a norm have one height
    (r"<mi>(log|exp)</mi>(?!<mo stretchy)", r'<mi>\1</mi><mspace width="0.167em" />'),
)
"""What browsers set too tightly, too high or in the wrong letters, in the MathML that is made."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The first page has no siblings: it takes the room of their navigation."""
    if page.url in ("", "index.html"):
        page.meta["hide"] = ["navigation"]
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """The HTML of a page with its formulas."""
    return FORMULA.sub(_formula, content)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """A finished page: what lets the search work without a server is our own, not fetched from elsewhere."""
    return output.replace(SHIM, f"{'../' * page.url.count('/')}assets/worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page that a server shows instead of one that is missing; it lies at the root."""
    return output_content.replace(SHIM, "/assets/worker.js")


def on_config(config: Any) -> Any:
    """The configuration with its navigation expanded."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(items: list[Any], folder: Path) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            found.append({k: _expanded(v, folder) if isinstance(v, list) else v for k, v in item.items()})
        elif "*" in item:
            pages = sorted(path.relative_to(folder).as_posix() for path in folder.glob(item))
            found += [page for page in pages if not page.endswith("index.md")]
        else:
            found.append(item)
    return found


def refined(made: str) -> str:
    """MathML as browsers show it well."""
    for given, better in SPACING:
        made = re.sub(given, better, made)
    return made


def _formula(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # an extra that the tests of this file do without

    shown = "block" if match[2] == "[" else "inline"
    made = convert(html.unescape(match[3]).strip(), display=shown)
    if "\\" in made:
        raise SystemExit(f"a command in this formula is not known: {match[3].strip()}")
    made = refined(made)
    if odd := re.search(r'mathvariant="(?!normal")', made):
        raise SystemExit(
            f"browsers do not know the letters of this formula: {match[3].strip()} ({made[odd.start() :][:30]})"
        )
    return f'<div class="formula">{made}</div>' if shown == "block" else made
