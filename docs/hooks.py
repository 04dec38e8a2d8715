"""What mkdocs does to pages while it builds the site."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Keep a number and its deviation on one line."""
    return markdown.replace(" ± ", "\u00a0±\u00a0")
