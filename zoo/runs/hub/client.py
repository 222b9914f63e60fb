"""Asking a hub through huggingface_hub: what goes wrong becomes one line, in which no token stands.

`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HUB_CACHE` and the rest are read by huggingface_hub itself.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import zoo
from zoo.common.options import verbosity

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LOG_IN = "log in by `hf auth login`, or set HF_TOKEN"
_NO_ANSWER = {"ConnectError", "TimeoutException", "NetworkError", "ProtocolError", "ProxyError", "ConnectionError"}
_LOGIN = re.compile(r"://[^/@\s]+@")  # user and password in an address
_LIBRARIES = ("huggingface_hub", "hf_xet", "httpx", "requests", "httpcore")


class HubError(OSError):
    """Says in one line what a hub did not give or take, and what to do."""


def client() -> HfApi:
    """The client of the hub that `HF_ENDPOINT` names."""
    from huggingface_hub import HfApi

    return HfApi(library_name="zoo", library_version=zoo.__version__)


def endpoint() -> str:
    """The hub's address, without user and password."""
    from huggingface_hub import constants

    return _LOGIN.sub("://", constants.ENDPOINT)


def check_token() -> None:
    """Refuse to begin what needs a token without one.

    Raises:
        HubError: when there is none, or the hub may not be asked.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set: nothing can be pushed; unset it")
    if get_token() is None:
        raise HubError(f"no token for {endpoint()}: {LOG_IN}, to one that may write")


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn errors of the hub into one line; all others pass.

    Args:
        what: is wanted, the beginning of the line.

    Raises:
        HubError: for an error of the network, the hub or its client.
    """
    from huggingface_hub import utils

    hidden = (not sys.stderr.isatty() or verbosity() == "quiet") and not utils.are_progress_bars_disabled()
    if hidden:
        utils.disable_progress_bars()
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        chain = [error, *_causes(error)]
        reason = _reason(chain)
        if reason is None:
            raise
        raise HubError(without_secrets(f"{what}: {reason}")) from None
    finally:
        if hidden:
            utils.enable_progress_bars()


def without_secrets(text: str) -> str:
    """A text without the token in use and without passwords in addresses."""
    from huggingface_hub import get_token

    token = get_token()
    return _LOGIN.sub("://", text.replace(token, "<token>") if token and len(token) > 8 else text)


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following = error.__cause__ or error.__context__
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def _reason(chain: list[BaseException]) -> str | None:
    """What a chain of errors comes down to; None where it is none of the hub's. Names serve all of its releases."""
    from huggingface_hub import constants

    kinds = {cls.__name__: each for each in reversed(chain) for cls in type(each).__mro__}
    responses = [getattr(each, "response", None) for each in chain]
    status = next((response.status_code for response in responses if response is not None), None)
    if "OfflineModeIsEnabled" in kinds or ("EntryNotFoundError" in kinds and constants.HF_HUB_OFFLINE):
        return "it is not, or not whole, in the cache, and HF_HUB_OFFLINE is set: unset it"
    if "GatedRepoError" in kinds:
        return f"its conditions are to be accepted on its page at {endpoint()} first; then {LOG_IN}"
    if "RepositoryNotFoundError" in kinds:
        return f"{endpoint()} has no such model, or shows it to others only: {LOG_IN} to one that may see it"
    if "RevisionNotFoundError" in kinds:
        return f"{endpoint()} has no such branch, tag or commit of it"
    if status in (401, 403):
        return f"{endpoint()} refused it ({status}): {LOG_IN}, to one that may do that"
    if status is not None:
        return f"{endpoint()} answered {status}; try again later"
    if kinds.keys() & _NO_ANSWER:
        return (
            f"no answer from {endpoint()}: is there a network, and is HF_ENDPOINT right? HF_HUB_OFFLINE=1 takes what "
            "was fetched before"
        )
    if "EntryNotFoundError" in kinds:
        return "it is not, or not whole, in the cache, and could not be had from the hub"
    first = chain[0]
    if type(first).__module__.startswith(_LIBRARIES) or (isinstance(first, RuntimeError) and len(chain) > 1):
        return f"{type(first).__name__}: {str(first).strip().partition(chr(10))[0][:200]}"
    return None
