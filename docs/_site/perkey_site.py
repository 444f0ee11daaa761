"""What `make site` adds to Sphinx: diagrams without scripts, Markdown beside HTML, dead links."""

from __future__ import annotations

import html
import importlib
import inspect
import re
import shutil
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import state_chart
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from perkey.app_options import AppOptions
from perkey.handler_types import RunOptions
from perkey.options import HandlerOptions

LOG = logging.getLogger(__name__)
DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
#: files beside docs/ that are pages of the site
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "project/contributing.md"}
PAGES |= {"CHANGELOG.md": "project/changelog.md", "SECURITY.md": "project/security-policy.md"}
#: a link of Markdown: its text and its target
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _list_of_options)
    app.connect("autodoc-process-signature", _signature)
    app.connect("build-finished", _finish)
    app.add_transform(Diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """The text of a page, ready for Sphinx."""
    source[0] = text_of(app, name)


def text_of(app: Sphinx, name: str) -> str:
    """The Markdown of a page, with links that lead somewhere in the site."""
    path = Path(app.env.doc2path(name))
    outside = [file for file, page in PAGES.items() if page == f"{name}.md" and file != "README.md"]
    path = ROOT / outside[0] if outside else path
    text = path.read_text()
    if "\n*\n" in text and not [one for one in path.parent.glob("*.md") if one != path]:
        text = text.replace("\n*\n", "\n")  # a list of pages that has none yet

    def link(match: re.Match[str]) -> str:
        shown, target = match.groups()
        file, _, anchor = target.partition("#")
        whole = (path.parent / file).resolve()
        if "://" in target or not file or not whole.exists():
            return match[0]
        if path.name == "CHANGELOG.md":
            anchor = ""  # history: the section may have gone since
        return _link(app, name, shown, whole, f"#{anchor}" if anchor else "") or match[0]

    return LINK.sub(link, text)


def _link(app: Sphinx, name: str, shown: str, whole: Path, anchor: str) -> str | None:
    """A link to this file: to its page, to a copy of it, or, a folder, none. None: as it is."""
    if not whole.is_relative_to(ROOT):
        return None
    up, inside = "../" * name.count("/"), whole.relative_to(ROOT).as_posix()
    if inside in PAGES:
        return f"[{shown}]({up}{PAGES[inside]}{anchor})"
    if whole.is_relative_to(DOCS):
        to = whole.relative_to(DOCS).as_posix()
        return f"[{shown}]({up}{to}{anchor})" if f"{name}.md" in PAGES.values() else None
    if whole.is_dir():
        return shown if "`" in shown else f"{shown} (`{inside}/`)"
    copy = Path(app.outdir) / "_files" / inside
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(whole, copy)
    return f'<a href="{up}_files/{inside}">{html.escape(shown).replace("`", "")}</a>'


class Diagrams(SphinxTransform):
    """Drawings (SVG in docs/diagrams and docs/images) and state diagrams become SVG in the page."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        """Replace both kinds of node."""
        for image in list(self.document.findall(nodes.image)):
            uri = image["uri"]
            if uri.endswith(".svg") and ("diagrams/" in uri or "images/" in uri):
                path = Path(self.env.doc2path(self.env.docname)).parent / uri
                self._replace(image, inline(path.resolve(), image.get("alt", "")))
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                try:
                    self._replace(block, state_chart.draw(block.astext()))
                except ValueError as error:
                    LOG.warning("%s", error, location=block)

    @staticmethod
    def _replace(node: nodes.Element, svg: str) -> None:
        figure = f'<figure class="pk-figure">{svg}</figure>'
        inside = isinstance(node.parent, nodes.paragraph) and len(node.parent.children) == 1
        (node.parent if inside else node).replace_self(nodes.raw("", figure, format="html"))


def inline(path: Path, alt: str) -> str:
    """The SVG of a file; `alt`, from the page, is its text alternative."""
    label = html.escape(alt, quote=True)
    svg = re.sub(r"<desc>.*?</desc>\n", "", path.read_text(), flags=re.DOTALL)
    svg = re.sub(r"<title>.*?</title>\n", "", svg, flags=re.DOTALL)  # else a tool tip
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _list_of_options(app: Sphinx, what: str, name: str, obj: Any, *rest: Any) -> None:
    """Lines of a docstring that begin with "`name`: " become a list."""
    lines: list[str] = rest[-1]
    made: list[str] = []
    inside = False
    for line in lines:
        begins = re.match(r"`[\w, `]+`: ", line)
        if begins and not inside:
            made.append("")
        if begins:
            made.append(f"- {line}")
        else:
            made.append(f"  {line}" if inside and line.strip() else line)
        inside = bool(begins) or (inside and bool(line.strip()))
    lines[:] = [re.sub(r"docs/([\w-]+)\.md", r":doc:`/\1`", line) for line in made]


#: the defaults of `run()` that are not None
RUN = {"engine": "local"}
#: what takes its options as **options: the class or type that lists them
OPTIONS = {
    "perkey.App": ("group, kafka, *", AppOptions, {"group", "kafka"}),
    "perkey.App.consume": ("topics, *", HandlerOptions, {"function", "topics"}),
    "perkey.App.run": ("*", RunOptions, set()),
    "perkey.App.main": ("*", RunOptions, set()),
    "perkey.App.start": ("*", RunOptions, set()),
}


def _signature(app: Sphinx | None, what: str, name: str, *rest: Any) -> tuple[str, str] | None:
    """The signature of what takes `**options`, with every option and its default."""
    if name not in OPTIONS:
        return None
    first, owner, without = OPTIONS[name]
    known = {one.name: one.default for one in fields(owner)} if is_dataclass(owner) else RUN
    named = [one for one in owner.__annotations__ if one not in without]
    texts = [f"{one}={_default(known.get(one))}" for one in named]
    returned = rest[-1] if name not in {"perkey.App", "perkey.App.consume"} else ""
    return f"({', '.join([first, *texts])})", returned or ""


def _default(value: object) -> str:
    kind = type(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{int(value):_}"
    return f"{kind.__name__}()" if kind.__module__.startswith("perkey") else repr(value)


class _Page(HTMLParser):
    """Of a page of HTML its anchors, and what it links to and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "shortcut icon", "preload"}:
            self.loads.append(values.get("href", ""))
        elif tag in {"img", "script", "iframe", "source", "video"} and "src" in values:
            self.loads.append(values["src"])


def dead_links(out: Path) -> list[str]:
    """Each link of the built pages that leads nowhere, and what another host would load."""
    pages: dict[Path, _Page] = {}
    for path in sorted(out.rglob("*.html")):
        pages[path] = page = _Page()
        page.feed(path.read_text())
    dead = []
    for path, page in pages.items():
        where = path.relative_to(out)
        away = [url for url in page.loads if urlsplit(url).netloc]
        dead += [f"{where} loads {url} from another host" for url in away]
        for url in [*page.links, *page.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                dead.append(f"{where} links to {url}: no such file")
            elif anchor and target in pages and anchor not in pages[target].ids:
                dead.append(f"{where} links to {url}: no such anchor")
    return sorted(set(dead))


def _finish(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    _markdown(app, out)
    for line in dead_links(out):
        LOG.warning(line)


def _markdown(app: Sphinx, out: Path) -> None:
    """Each page's Markdown beside its HTML; `llms.txt` lists them, `llms-full.txt` has all."""
    full = []
    for name in sorted(app.env.found_docs):
        text = described(plain(text_of(app, name)))
        (out / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(text)
        full.append(f"<!-- {name}.md -->\n\n{text.strip()}\n")
    (out / "llms-full.txt").write_text("\n".join(full))
    for pictures in ("diagrams", "images"):  # where the Markdown has them
        shutil.copytree(DOCS / pictures, out / pictures, dirs_exist_ok=True)
    lines = ["# Perkey", "", f"> {_summary()}", ""]
    master = app.env.get_doctree(app.config.root_doc)
    for toctree in master.findall(lambda node: node.tagname == "toctree"):
        lines += [f"## {toctree['caption']}", ""]
        for title, name in toctree["entries"]:
            lines.append(f"- [{title or app.env.titles[name].astext()}]({name}.md)")
            below = app.env.toctree_includes.get(name, ())
            lines += [f"- [{app.env.titles[one].astext()}]({one}.md)" for one in below]
        lines.append("")
    (out / "llms.txt").write_text("\n".join(lines))


def described(text: str) -> str:
    """Markdown of an API page: each name with its signature and docstring."""
    module = "perkey"

    def entry(path: str, level: str) -> str:
        owner: Any = importlib.import_module(module)
        for word in path.split("."):
            owner = getattr(owner, word)
        made = _signature(None, "", f"{module}.{path}", "")
        try:
            signature = (
                made[0] if made else str(inspect.signature(owner)) if callable(owner) else ""
            )
        except (TypeError, ValueError):
            signature = ""
        about = inspect.cleandoc(owner.__doc__ or "")
        return f"{level} `{path}{signature}`\n\n{about}\n"

    def block(match: re.Match[str]) -> str:
        nonlocal module
        parts = []
        for line in match[1].splitlines():
            kind, _, given = line.strip().partition(":: ")
            if kind == ".. currentmodule":
                module = given
            elif kind.startswith(".. auto"):
                parts.append(entry(given, "###"))
                last = given
            elif line.strip().startswith(":members:"):
                named = line.partition(":members:")[2].replace(",", " ").split()
                owner = vars(getattr(importlib.import_module(module), last))
                names = named or [one for one in owner if callable(owner[one]) and one[0] != "_"]
                parts += [entry(f"{last}.{name}", "####") for name in names]
        return "\n".join(parts)

    return re.sub(r"```\{eval-rst\}\n(.*?)```\n", block, text, flags=re.DOTALL)


def _summary() -> str:
    text = (ROOT / "README.md").read_text()
    return re.sub(r"\s+", " ", text.split("**")[1])


def plain(text: str) -> str:
    """Markdown that needs no Sphinx: without front matter, tables of contents and divisions."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"```\{toctree\}.*?```\n", "", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^:{3,}.*\n", "", text)
    text = re.sub(r"(?m)^\([\w-]+\)=\n", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).lstrip()
