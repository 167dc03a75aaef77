"""Small requests to a server on this machine, past any configured proxy."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Answer:
    """Status and body of a response; status 0 when there was none, and then `text` says why."""

    status: int
    text: str

    def json(self) -> Any:
        """The body as JSON; NaN and Infinity, which JSON has not, become floats.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.text)


def request(url: str, body: Any = None, *, key: str | None = None, timeout_s: float = 10.0) -> Answer:
    """GET `url`, or POST `body` to it as JSON; never raises for what the network or the server does."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with _DIRECT.open(urllib.request.Request(url, data, headers), timeout=timeout_s) as response:
            return Answer(response.status, response.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as err:
        with err:
            return Answer(err.code, err.read().decode("utf-8", "replace"))
    except OSError as err:  # URLError, timeouts and resets alike
        return Answer(0, str(getattr(err, "reason", err)))
    except ValueError as err:  # half an answer from a dying server
        return Answer(0, f"not an HTTP answer: {err}")
