"""A package written for the previous release still works, and its author is told what is called otherwise now."""

from __future__ import annotations

import pytest

import gofer.integration
from gofer.integration import Author, ConnectionContext, Incoming, Integration, JobScope, ShellAccess


@pytest.mark.parametrize(
    ("old", "new"), [("Account", ConnectionContext), ("Job", JobScope), ("Equipment", ShellAccess)]
)
def test_an_old_name_is_the_new_one_and_warns(old: str, new: type) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new.__name__} now"):
        assert getattr(gofer.integration, old) is new


def test_a_method_by_its_old_name_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="is called") as warned:

        class Old(Integration):
            name = "old"
            tells_work = True

            def move(self, settings: object, old: str, new: str) -> dict[str, str]:
                return {old: new}

    assert [str(each.message).partition(" now")[0] for each in warned] == [
        "Old.move is called rename_conversation",
        "Old.tells_work is called shows_run_summary",
    ]
    assert Old().rename_conversation({}, "a", "b") == {"a": "b"}
    assert Old.shows_run_summary


def test_a_sign_up_without_its_flag_is_offered() -> None:
    with pytest.warns(DeprecationWarning, match="Old.sign_up needs can_sign_up = True"):

        class Old(Integration):
            name = "old"

            def sign_up(self, settings: object, **about: object) -> None:
                return None

    assert Old().can_sign_up
    assert not Integration.can_sign_up


def test_a_field_by_its_old_name_is_taken_and_read() -> None:
    with pytest.warns(DeprecationWarning, match=r"lasting=\) is called stable_id now"):
        message = Incoming("room", Author("1"), "hi", True, lasting="house 7")  # type: ignore[call-arg]
    assert message.stable_id == "house 7"
    with pytest.warns(DeprecationWarning, match="quoted_here is called quote_is_ours now"):
        assert not message.quoted_here  # type: ignore[attr-defined]


def test_no_other_name_is_made_up() -> None:
    with pytest.raises(AttributeError):
        _ = gofer.integration.Nothing
