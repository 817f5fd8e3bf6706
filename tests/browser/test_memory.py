"""The Memory page in a real browser: note, find, change, forget, restore."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

pytestmark = pytest.mark.slow


def test_a_note_is_made_found_changed_forgotten_and_restored(signed_in: BrowserContext) -> None:
    page = signed_in.new_page()
    page.goto("/memory")
    page.get_by_text("Remember something").click()
    page.get_by_label("What", exact=True).fill("The harbour master is called Sixten")
    page.get_by_label("Who may hear of it").fill("agent:gofer")
    page.get_by_role("button", name="Remember").click()
    expect(page.get_by_text("The harbour master is called Sixten").first).to_be_visible()
    page.goto("/memory")
    page.get_by_label("Search").fill("harbour masters")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="The harbour master is called Sixten").click()
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("What", exact=True).fill("The harbour master is called Solveig")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The harbour master is called Solveig").first).to_be_visible()
    expect(page.get_by_text("-The harbour master is called Sixten")).to_be_visible()
    page.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("(forgotten)")).to_be_visible()
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("The harbour master is called Solveig").first).to_be_visible()
    page.close()
