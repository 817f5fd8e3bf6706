"""The Memory page in a real browser: everything that can be done there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from .seed_data import Lived

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


def test_a_note_is_pinned_moved_taken_along_and_its_source_is_a_link_away(
    signed_in: BrowserContext, lived: Lived
) -> None:
    page = signed_in.new_page()
    said = lived.ask("POST", "/messages", json={"text": "/remember The bosun is allergic to nuts"})
    room = f"conversation:{said['conversation_id']}"
    page.goto("/memory")
    page.get_by_label("Search").fill("bosun")
    page.get_by_label("Audience", exact=True).fill("person:me")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_label("Audience", exact=True)).to_have_value("person:me")
    page.get_by_role("link", name="The bosun is allergic to nuts").click()
    page.get_by_role("link", name="message 1").click()
    expect(page.locator("#m1")).to_contain_text("The bosun is allergic to nuts")
    page.go_back()
    page.locator("summary", has_text="Audience").click()
    page.get_by_label("Who may hear of it").fill(room)
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("Kept for its new audience.")).to_be_visible()
    expect(page.get_by_text(f"for {room}")).to_be_visible()
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_text("Pinned.")).to_be_visible()
    page.get_by_role("button", name="Unpin").click()
    expect(page.get_by_text("Not pinned any more.")).to_be_visible()
    page.goto(f"/memory?scope={room}")
    page.get_by_role("button", name=f"Make the index of {room} anew").click()
    expect(page.get_by_text("1 indexes are being rebuilt.")).to_be_visible()
    page.goto(f"/memory?scope={room}")
    with page.expect_download() as loaded:
        page.get_by_role("link", name="Export").click()
    lines = Path(loaded.value.path()).read_text()
    assert [json.loads(line)["text"] for line in lines.splitlines()] == ["The bosun is allergic to nuts"]
    page.goto("/memory")
    page.locator("summary", has_text="Import").click()
    page.get_by_label("MEMORY.md").fill("# Crew\n- The cook is called Ebba")
    page.get_by_label("Who may hear of what is imported").fill("agent:gofer")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_text("1 memories are kept.")).to_be_visible()
    expect(page.get_by_role("link", name="Crew: The cook is called Ebba")).to_be_visible()
    page.close()
