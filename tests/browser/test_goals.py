"""The Goals pages in a real browser: the board, one goal, its buttons, and what is told to it, live."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

from .looking import PHONE, objections
from .seed_data import Lived

pytestmark = pytest.mark.slow


def test_a_goal_is_found_on_the_board_and_steered(signed_in: BrowserContext, lived: Lived) -> None:
    goal = lived.ask("POST", "/goals", json={"text": "Repaint the <b>hull</b> before Sunday"})
    lived.ask("POST", f"/goals/{goal['id']}/pause", json={})
    page = signed_in.new_page()
    page.goto("/goals")
    assert objections(page) == []
    page.get_by_role("link", name="Repaint the <b>hull</b> before Sunday").click()
    assert objections(page) == []
    page.get_by_label("Tell it something").fill("Red below the waterline")
    page.get_by_role("button", name="Say it").click()
    expect(page.get_by_text("Red below the waterline")).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled").first).to_be_visible()
    page.close()
