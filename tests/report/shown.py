"""A page as its tests see it: ids, links, tags, and the texts of elements by class."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from nvfp4_suite.ci.report import goldens, page, reading, report

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NIGHT = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)
VOID = ("meta", "link", "br", "img", "input", "hr")


@dataclass
class Element:
    """One element: its attributes, its place in the tree by the tags above it, and all text in it."""

    tag: str
    attributes: dict[str, str | None]
    above: tuple[str, ...]
    text: str = ""

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()


@dataclass
class Page(HTMLParser):
    """The elements of an HTML text, in its order. Asserts that every end tag has its start."""

    source: str
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[Element] = []
        self.feed(self.source)
        assert not self.open, f"{self.open[-1].tag} is not closed"

    def handle_starttag(self, tag, attributes):
        element = Element(tag, dict(attributes), tuple(one.tag for one in self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append(Element(tag, dict(attributes), tuple(one.tag for one in self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1].tag == tag, f"</{tag}> ends {self.open and self.open[-1].tag}"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.text += data

    def all(self, tag: str, *classes: str) -> list[Element]:
        """The elements of this tag that have all these classes."""
        return [one for one in self.elements if one.tag == tag and set(classes) <= set(one.classes)]

    def inside(self, anchor: str) -> str:
        """The text of the element with this id."""
        (one,) = [one for one in self.elements if one.attributes.get("id") == anchor]
        return one.text

    @property
    def ids(self) -> Counter[str]:
        return Counter(one.attributes["id"] for one in self.elements if "id" in one.attributes)


@cache
def recorded() -> goldens.Goldens:
    return goldens.read(GOLDEN)


def made(root: Path, *expected: str, before: Path | None = None) -> report.Report:
    """The report of the folder `root`; with `before`, against that one."""
    earlier = reading.read([before]) if before else None
    return report.make(reading.read([root], list(expected)), recorded(), earlier)


def shown(root: Path, *expected: str) -> Page:
    """The page of the folder `root`."""
    return Page(page.page(made(root, *expected), NIGHT))
