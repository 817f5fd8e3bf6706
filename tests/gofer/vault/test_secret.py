"""A Secret gives its value to `reveal` and to nobody else."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback

import pytest
from pydantic import BaseModel, ValidationError

from gofer.vault.redaction import Secret

VALUE = "correct-horse-battery"


class Account(BaseModel):
    name: str
    token: Secret


def test_reveal_gives_the_value() -> None:
    assert Secret(VALUE).reveal() == VALUE
    assert Secret(Secret(VALUE)).reveal() == VALUE


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        lambda secret: f"{secret}",
        lambda secret: f"{secret!r:>40}",
        lambda secret: f"{secret:>40}",
        lambda secret: "{} {!r}".format(*[secret, secret]),
        lambda secret: f"{ {'token': [secret]} }",
        lambda secret: str(Account(name="a", token=secret)),
        lambda secret: repr(Account(name="a", token=secret)),
        lambda secret: Account(name="a", token=secret).model_dump_json(),
        lambda secret: str(Account(name="a", token=secret).model_dump()),
        lambda secret: json.dumps({"token": secret}, default=str),
        lambda secret: logging.LogRecord("n", 20, "p", 1, "token %s", (secret,), None).getMessage(),
        lambda secret: "".join(traceback.format_exception(ValueError(secret))),
        lambda secret: str(dir(secret)),
    ],
)
def test_showing_it_shows_nothing(show) -> None:  # type: ignore[no-untyped-def]
    assert VALUE not in show(Secret(VALUE))


def test_json_and_pickle_refuse_it() -> None:
    with pytest.raises(TypeError):
        json.dumps(Secret(VALUE))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(Secret(VALUE), protocol)


def test_it_compares_by_value_and_only_with_its_kind() -> None:
    assert Secret("a\udcff") == Secret("a\udcff")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret("")


def test_copies_are_itself_and_it_cannot_change() -> None:
    secret = Secret(VALUE)
    assert copy.copy(secret) is secret
    assert copy.deepcopy({"token": secret})["token"] is secret
    with pytest.raises(AttributeError):
        secret._value = "other"


def test_it_is_a_pydantic_field() -> None:
    account = Account.model_validate_json(json.dumps({"name": "a", "token": VALUE}))
    assert account.token == Secret(VALUE)
    assert Account.model_validate({"name": "a", "token": VALUE}).token.reveal() == VALUE
    assert account.model_copy(deep=True).token.reveal() == VALUE
    assert Account.model_validate(account.model_dump()).token == account.token
    with pytest.raises(ValidationError):
        Account.model_validate({"name": "a", "token": 12345678})


def test_only_strings_become_secrets() -> None:
    with pytest.raises(TypeError):
        Secret(b"bytes")  # type: ignore[arg-type]
