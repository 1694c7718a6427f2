"""Colours that Streamlit derives from the theme and that would be hard to read: set so that they meet WCAG AA."""

from __future__ import annotations

from tokenpaths.frontend.charts.drawing.palette import Theme, ink_on

PRIMARY = (
    '[data-testid="stBaseButton-primary"]',
    '[data-testid="stBaseButton-primaryFormSubmit"]',
    '[data-testid="stLinkButton"] [kind="primary"]',
)
TAG = '[data-testid="stMultiSelect"] [data-tag]'
"""what was chosen in a list of several, in the accent colour"""


def style(theme: Theme) -> str:
    """A style element: words of primary buttons and chosen tags, white by default, in black or white, whichever reads
    better.

    Captions, which are the page's colour at 60 % by default, get the muted colour of charts; labels of widgets that are
    disabled stay readable.
    """
    buttons = ", ".join(f"{selector}:not(:disabled), {selector}:not(:disabled) *" for selector in PRIMARY)
    buttons += f", {TAG}, {TAG} *"
    captions = '[data-testid="stCaptionContainer"], [data-testid="stCaptionContainer"] :not(a):not(code)'
    return (
        f"<style>{buttons} {{ color: {ink_on(theme.accent)} !important; }} "
        f"{captions} {{ color: {theme.muted}; opacity: 1; }} "
        f'[data-testid="stWidgetLabel"] p {{ color: {theme.ink}; }}</style>'
    )
