"""Reads an HTML page into what tests ask about it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"wbr", "meta", "link", "img", "br", "line", "path", "circle", "rect"}


class Page(HTMLParser):
    """Elements with their attributes, text by section, and whether tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.section = ""
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()
        if tag == "section":
            self.section = ""

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            broken = self.elements[-1][0] == "wbr"  # a word that may be broken is one word
            self.texts[self.section] = self.texts.get(self.section, "") + ("" if broken else " ") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def style(self) -> str:
        return re.search(r"<style>(.*?)</style>", self.source, re.DOTALL)[1]
