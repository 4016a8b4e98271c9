"""What mkdocs is told of our pages."""
import re

# A fence may say to tests what is done with a block (docs/development.md); readers see the language and the file's name.
FENCE = re.compile(r'^```(\w+)((?: [a-z]+)*)( title="[^"]*")?$', re.MULTILINE)


def on_page_markdown(markdown, **kwargs):
    return FENCE.sub(lambda found: "```" + found[1] + (found[3] or ""), markdown)
