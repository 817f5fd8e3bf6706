"""docs/integrations/hello.md: its receiver and its bodies, run as the page has them."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
from pathlib import Path

from gofer.connections.changes import add_connection
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret
from support.web_server import House

PAGE = (Path(__file__).parents[2] / "docs" / "integrations" / "hello.md").read_text(encoding="utf-8")
KEY = "a key of sixty-four characters, or nearly"


def receiver() -> str:
    """The page's, on a port of its own choosing that it names first."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    start = 'server = HTTPServer(("127.0.0.1", 0), Receiver)\nprint(server.server_port, flush=True)\n'
    given = 'HTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()'
    assert given in text
    return str(text).replace(given, f"{start}server.serve_forever()")


def connect(house: House, port: str) -> str:
    return house.write(
        add_connection,
        vault=house.platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=house.platform.registry.get("hello"),
        name="hello",
        settings={"reply_url": f"http://127.0.0.1:{port}/replies"},
        secrets_given={"signing_key": Secret(KEY)},
        by="test",
    )


def post(house: House, connection: str, body: str) -> dict[str, str]:
    signature = hmac.new(KEY.encode(), body.encode(), hashlib.sha256).hexdigest()
    browser = house.browser(**{"x-hello-signature": signature})
    answer = browser.client.post(f"/hooks/{connection}", content=body)
    assert answer.status_code == 200
    return dict(answer.json())


def test_the_receiver_of_the_page_gets_the_reply_to_the_message_of_the_page(data_dir: Path) -> None:
    (message,) = re.findall(r"body='(.*?)'", PAGE)
    (ping,) = re.findall(r"a ping \| `(.*?)`", PAGE)
    told = re.findall(r'`200` with `(\{"result".*?\})`', PAGE)
    house = House(data_dir, sandbox="unconfined")
    with subprocess.Popen(
        [sys.executable, "-c", receiver()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as service:
        try:
            assert service.stdout is not None
            connection = connect(house, service.stdout.readline().strip())
            answers = [post(house, connection, message), post(house, connection, ping)]
            assert answers == [json.loads(each) for each in told]
            assert service.stdout.readline().startswith("kitchen: ")
            assert "uname" in service.stdout.readline()
        finally:
            service.kill()
            house.close()
