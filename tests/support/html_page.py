"""A page as a reader of HTML sees it."""

import html.parser

VOID = {"meta", "br", "img", "input", "hr", "link"}


class Page(html.parser.HTMLParser):
    """Checks that tags close in order; keeps tags, attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.headings = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
