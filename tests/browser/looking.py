"""Looking at a page with axe-core's eyes, and keeping a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, ViewportSize

AXE = Path(__file__).parent / "axe-4.14.0.min.js"
SHOTS = Path(__file__).parents[2] / ".artefacts" / "screenshots"
PHONE, DESK = ViewportSize(width=390, height=844), ViewportSize(width=1280, height=900)


def objections(page: Page) -> list[str]:
    """What axe-core objects to; run outside the page's own policy, which would refuse it."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    found: Any = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]
