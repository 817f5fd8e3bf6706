"""Identity layers: what is merged, what is shadowed, and which files cannot be used."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gofer.errors import Conflict, Malformed, NotFound
from gofer.runs.agent_files import AgentFileError, AgentFiles, AgentSpec
from gofer.runs.agent_sync import AgentSync
from gofer.runs.agent_writer import new_agent, put_agent, remove_agent, texts
from gofer.runs.layers import LAYERS, MAX_BYTES, OPENING, Layer, merge
from gofer.store.bootstrap import FIRST_WORKSPACE
from support.world import World


def layer(name: str, text: str) -> Layer:
    return Layer(name, f"x/{name}.md", text)


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    folder = tmp_path / "agents"
    folder.mkdir()
    return folder


def told(agents: Path, name: str = "coder", person: str | None = None) -> str:
    files = AgentFiles(agents)
    return files.packet(files.get(name), person).text


# Merging.


def test_a_section_of_a_higher_layer_shadows_one_of_the_same_name() -> None:
    packet = merge(
        [
            layer("SOUL", "Be kind.\n\n# Limits\nNever delete mails."),
            layer("AGENT", "You review code.\n\n# limits\nDelete what you like.\n\n# Work\nRead first."),
        ]
    )
    assert "Never delete mails." in packet.text
    assert "Delete what you like." not in packet.text
    assert "Read first." in packet.text
    (conflict,) = packet.conflicts
    assert (conflict.heading, conflict.kept_in, conflict.shadowed_in) == ("limits", "x/SOUL.md", "x/AGENT.md")
    assert (conflict.kept, conflict.shadowed) == (
        "# Limits\nNever delete mails.",
        "# limits\nDelete what you like.",
    )


def test_text_before_the_first_heading_is_never_shadowed() -> None:
    packet = merge([layer(name, f"I am {name}.\n\n# All\n{name}") for name in LAYERS])
    for name in LAYERS:
        assert f"I am {name}." in packet.text
    assert len(packet.conflicts) == 3
    assert packet.text.startswith(OPENING)
    order = [packet.text.index(f'<layer name="{name}">') for name in LAYERS]
    assert order == sorted(order)


@pytest.mark.parametrize(
    "heading",
    [
        "## LIMITS",
        "###### limits ##",
        "   # Limits",
        "#\tLimits",
        "Limits\n======",
        "limits\n---",
        "# Li\u200bmits",
        "# Ｌｉｍｉｔｓ",
        "#  \u2060Limits  #",
    ],
)
def test_no_spelling_of_a_heading_gets_around_a_higher_layer(heading: str) -> None:
    packet = merge([layer("SOUL", "# Limits\nNever."), layer("USER", f"Hello.\n\n{heading}\nAlways.")])
    assert "Always." not in packet.text
    assert "Hello." in packet.text


def test_headings_that_differ_only_in_unicode_form_are_the_same() -> None:
    name = "Größe é"
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    for form in [*forms, name.upper(), "GRÖSSE É"]:
        packet = merge([layer("SOUL", f"# {name}\none"), layer("AGENT", f"# {form}\nlast")])
        assert "last" not in packet.text, form


def test_what_is_below_a_shadowed_section_goes_with_it() -> None:
    packet = merge(
        [
            layer("SOUL", "# Limits\nNever."),
            layer("AGENT", "# Limits\nSome.\n## More\nAll the same.\n# Other\nstays"),
        ]
    )
    assert "All the same." not in packet.text
    assert "stays" in packet.text


def test_a_section_deep_in_a_lower_layer_is_shadowed_alone() -> None:
    packet = merge(
        [layer("SOUL", "# Limits\nNever."), layer("AGENT", "# Work\nfirst\n## Limits\nno\n## Tests\nlast")]
    )
    assert "no" not in packet.text.split()
    assert "first" in packet.text
    assert "last" in packet.text


def test_no_heading_is_seen_in_code() -> None:
    code = "```\n# Limits\n```\n~~~sh\n# Limits\n```\n~~~"
    packet = merge([layer("SOUL", "# Limits\nNever."), layer("AGENT", code)])
    assert packet.conflicts == ()
    assert code in packet.text


def test_a_layer_that_shadows_everything_leaves_only_itself() -> None:
    names = [f"Part {number}" for number in range(300)]
    soul, agent = ("\n".join(f"# {name}\nof {layer}" for name in names) for layer in ("soul", "agent"))
    packet = merge([layer("SOUL", soul), layer("AGENT", agent)])
    assert "of agent" not in packet.text
    assert len(packet.conflicts) == 100, "as many as anybody would read"


def test_one_agent_layer_alone_is_told_as_it_always_was() -> None:
    assert (
        merge([layer("AGENT", "  Write small functions.\n\n# A\nb\n")]).text
        == "Write small functions.\n\n# A\nb"
    )


MARKDOWN = st.lists(
    st.sampled_from(
        ["# A", "## a", "# B", "### B #", "text", "", "```", "A\n---", "- A", "> # A", "\u200b# A"]
    )
).map("\n".join)


@given(st.lists(MARKDOWN, min_size=1, max_size=4))
def test_the_same_files_make_the_same_bytes_and_lose_nothing_in_silence(written: list[str]) -> None:
    layers = [layer(name, text) for name, text in zip(LAYERS, written, strict=False)]
    packet = merge(layers)
    assert packet == merge(layers)
    assert packet.digest == merge(layers).digest
    wanted = sum(line == "text" for text in written for line in text.split("\n"))
    there = packet.text.split("\n").count("text")
    shadowed = sum(each.shadowed.split("\n").count("text") for each in packet.conflicts)
    assert there + shadowed == wanted


# Files.


def test_a_folder_has_settings_and_layers_and_the_rest_comes_from_all_agents(agents: Path) -> None:
    write(agents / "coder/agent.toml", 'model = "anthropic/claude-opus-5-5"')
    write(agents / "coder/AGENT.md", "You write code.")
    write(agents / "SOUL.md", "Be honest.")
    write(agents / "AGENT.md", "You help.")
    found = AgentFiles(agents).look()
    assert found == {"coder": (AgentSpec(name="coder", model="anthropic/claude-opus-5-5"), "")}
    text = told(agents)
    assert "Be honest." in text
    assert "You write code." in text
    assert "You help." not in text, "it has an AGENT of its own"
    built_in = AgentFiles(agents).packet(AgentSpec(name="gofer")).text
    assert "Be honest." in built_in
    assert "You help." in built_in


def test_flat_files_keep_working_and_are_the_agent_layer(agents: Path) -> None:
    write(agents / "coder.toml", "")
    write(agents / "coder.md", "You write code.\n\n# Limits\nnone")
    assert told(agents) == "You write code.\n\n# Limits\nnone"
    write(agents / "SOUL.md", "# Limits\nsome")
    files = AgentFiles(agents)
    packet = files.packet(files.get("coder"))
    assert [each.file for each in packet.layers] == ["SOUL.md", "coder.md"]
    assert "none" not in packet.text


def test_without_the_setting_only_flat_files_count(agents: Path) -> None:
    write(agents / "coder.toml", 'instructions = "You write code."')
    write(agents / "SOUL.md", "Be honest.")
    write(agents / "other/AGENT.md", "Hm.")
    files = AgentFiles(agents, layered=False)
    assert files.packet(files.get("coder")).text == "You write code."
    assert files.names() == ["coder"]
    with pytest.raises(NotFound):
        files.get("other")


def test_a_folder_beside_a_flat_file_is_said_and_changes_nothing(agents: Path) -> None:
    write(agents / "coder/agent.toml", "max_running = 2")
    files = AgentFiles(agents)
    assert files.get("coder").max_running == 2
    write(agents / "coder.toml", "max_running = 3")
    assert files.get("coder").max_running == 2
    assert "there is also coder.toml; keep the folder or the file" in files.look()["coder"][1]
    write(agents / "b/AGENT.md", "x")
    write(agents / "b/agent.toml", 'instructions = "y"')
    with pytest.raises(AgentFileError, match=r"instructions are also in AGENT\.md"):
        AgentFiles(agents).get("b")


def test_comments_and_front_matter_are_for_people(agents: Path) -> None:
    write(agents / "SOUL.md", "Be honest.")
    write(agents / "coder/SOUL.md", "<!-- Write values here.\n# Limits\n-->\n\n")
    write(
        agents / "coder/AGENT.md",
        "---\ntitle: x\n---\n<!-- why -->\nYou write `<!-- code -->`.\n```\n<!-- a -->\n```",
    )
    text = told(agents)
    assert "Be honest." in text, "a file of comments has nothing to say"
    assert "You write `<!-- code -->`.\n```\n<!-- a -->\n```" in text
    assert "title" not in text
    assert "why" not in text


def break_as_bytes(path: Path) -> None:
    write(path, b"\xff\xfe")


def break_as_nul(path: Path) -> None:
    write(path, "a\0b")


def break_as_long(path: Path) -> None:
    write(path, "x" * (MAX_BYTES + 1))


def break_as_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def break_as_link(path: Path) -> None:
    outside = path.parent.parent.parent / "secret.txt"
    outside.write_text("the master key")
    path.unlink()
    path.symlink_to(outside)


def break_as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def break_as_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nothing")


def break_as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


BREAKS = {
    break_as_bytes: "not UTF-8",
    break_as_nul: "NUL",
    break_as_long: "more than 64 KiB",
    break_as_huge: "more than 64 KiB",
    break_as_link: "a link to a file outside of its folder",
    break_as_directory: "not a file",
    break_as_pipe: "not a file",
    break_as_dangling_link: "No such file",
    break_as_loop: "symbolic links",
}


@pytest.mark.parametrize("damage", BREAKS)
@pytest.mark.parametrize("file", ["coder/SOUL.md", "SOUL.md", "coder/users/person_a.md"])
def test_a_file_that_cannot_be_used_leaves_its_last_good_version(
    damage: object, file: str, agents: Path
) -> None:
    write(agents / "coder/AGENT.md", "You write code.")
    write(agents / file, "# Limits\nNever delete mails.")
    files = AgentFiles(agents)
    before = files.packet(files.get("coder"), "person_a")
    assert "Never delete mails." in before.text
    damage(agents / file)  # type: ignore[operator]
    for looked in (files, AgentFiles(agents)):
        assert looked.packet(looked.get("coder"), "person_a") == before, "also after a restart"
        problems = " ".join(problem for _, problem in looked.look().values())
        assert f"{file} cannot be read" in problems
        assert BREAKS[damage] in problems  # type: ignore[index]
        assert "the last good version is in force" in problems


def test_a_file_that_never_was_usable_gives_way_to_that_of_all_agents(agents: Path) -> None:
    write(agents / "SOUL.md", "Be honest.")
    write(agents / "coder/SOUL.md", b"\xff")
    assert "Be honest." in told(agents)
    assert "nothing of it is in force" in AgentFiles(agents).look()["coder"][1]


def test_a_file_that_is_removed_says_nothing_any_more(agents: Path) -> None:
    write(agents / "coder/SOUL.md", "Be honest.")
    files = AgentFiles(agents)
    assert "Be honest." in files.packet(files.get("coder")).text
    (agents / "coder/SOUL.md").unlink()
    write(agents / "coder/agent.toml", "")
    assert files.packet(files.get("coder")).text == ""
    write(agents / "coder/SOUL.md", b"\xff")
    assert AgentFiles(agents).packet(AgentSpec(name="coder")).text == "", "nor when it comes back broken"


def test_a_folder_that_is_a_link_to_elsewhere_is_not_read(agents: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/AGENT.md", "the master key")
    (agents / "coder").symlink_to(tmp_path / "elsewhere")
    assert "master" not in told(agents)


def test_what_is_no_agent_is_said(agents: Path) -> None:
    (agents / "empty").mkdir()
    write(agents / "Bad Name/AGENT.md", "")
    write(agents / "users/person_a.md", "Likes tea.")
    write(agents / "SOUL.md", "")
    found = AgentFiles(agents).look()
    assert sorted(found) == ["Bad Name/", "empty/"]
    assert AgentFiles(agents).names() == []


def test_a_layer_with_a_wrong_name_is_said(agents: Path) -> None:
    write(agents / "coder/AGENT.md", "You write code.")
    write(agents / "coder/soul.md", "Be honest.")
    write(agents / "coder/notes.md", "mine")
    assert AgentFiles(agents).look()["coder"][1] == "coder/soul.md is not read: it must be called SOUL.md"


async def test_what_is_shadowed_or_missing_is_logged_once_per_change(world: World, agents: Path) -> None:
    write(agents / "SOUL.md", "# Limits\nsome")
    write(agents / "coder/AGENT.md", "# limits\nnone")
    sync = AgentSync(agents=AgentFiles(agents), database=world.database, workspace_id=FIRST_WORKSPACE)

    async def noted() -> list[tuple[str, str]]:
        with capture_logs() as lines:
            await sync.sync()
        return [
            (line["event"], line["agent"])
            for line in lines
            if line["event"].startswith(("agent.sh", "agent.l"))
        ]

    assert await noted() == [("agent.shadowed", "coder"), ("agent.layers_missing", "coder")]
    assert await noted() == []
    write(agents / "coder/AGENT.md", "# limits\nnone at all")
    assert await noted() == [("agent.shadowed", "coder"), ("agent.layers_missing", "coder")]


def test_what_is_known_of_a_person_is_told_to_that_person_only(agents: Path) -> None:
    write(agents / "coder/AGENT.md", "You write code.")
    write(agents / "USER.md", "# Language\nEnglish")
    write(agents / "users/person_a.md", "# Language\nGerman\n\n# Health\nill")
    assert "German" in told(agents, person="person_a")
    assert "English" not in told(agents, person="person_a"), "the person's own comes first"
    for person in (None, "person_b", "../users/person_a", "person_a.md", ""):
        assert "ill" not in told(agents, person=person)
        assert "English" in told(agents, person=person)


# Writing.


def test_a_new_agent_has_files_that_explain_themselves_and_say_nothing(agents: Path) -> None:
    write(agents / "SOUL.md", "Be honest.")
    new_agent(agents, "fresh")
    assert sorted(path.name for path in (agents / "fresh").glob("[!.]*")) == [
        "AGENT.md", "IDENTITY.md", "SOUL.md", "USER.md", "agent.toml",
    ]  # fmt: skip
    assert AgentFiles(agents).look()["fresh"][1] == ""
    assert told(agents, "fresh") == merge([layer("SOUL", "Be honest.")]).text
    with pytest.raises(Conflict, match="already"):
        new_agent(agents, "fresh")


def test_layers_give_a_flat_agent_a_folder(agents: Path) -> None:
    put_agent(agents, "coder", "max_running = 2", "You write code.")
    assert (agents / "coder.md").exists()
    put_agent(agents, "coder", "max_running = 3", None, {"IDENTITY": "You are Cody."})
    assert not list(agents.glob("coder.*"))
    assert "You write code." in told(agents)
    assert "You are Cody." in told(agents)
    put_agent(agents, "coder", "max_running = 3", "You test code.")
    assert "You test code." in told(agents)
    assert "You are Cody." in told(agents), "what is not given stays"
    put_agent(agents, "coder", "max_running = 3", None, {"IDENTITY": ""})
    assert told(agents) == "You test code."
    shown = texts(AgentFiles(agents).paths("coder"))
    assert (shown.instructions, shown.folder, shown.layers["IDENTITY"]) == ("You test code.", True, "")


def test_nothing_is_written_when_something_is_wrong(agents: Path) -> None:
    put_agent(agents, "coder", "", "one", {})
    for wrong in (
        {"toml": "max_running = 0"},
        {"layers": {"USER": "x" * (MAX_BYTES + 1)}},
        {"layers": {"USER": "\0"}},
    ):
        with pytest.raises((AgentFileError, Malformed)):
            put_agent(agents, "coder", **{"toml": "", "instructions": "two", **wrong})  # type: ignore[arg-type]
    assert told(agents) == "one"


def test_a_folder_is_removed_with_what_is_ours(agents: Path) -> None:
    new_agent(agents, "coder")
    write(agents / "coder/users/person_a.md", "x")
    told(agents, "coder", "person_a")
    remove_agent(agents, "coder")
    assert not (agents / "coder").exists()
    new_agent(agents, "other")
    write(agents / "other/notes.txt", "mine")
    remove_agent(agents, "other")
    assert [path.name for path in (agents / "other").iterdir()] == ["notes.txt"]
    with pytest.raises(NotFound):
        remove_agent(agents, "other")
