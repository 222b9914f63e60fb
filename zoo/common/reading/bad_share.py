"""How many unreadable files a data set may have."""

from __future__ import annotations

from collections.abc import Collection

SHOWN = 5  # files named in a message


def check_bad_share(
    causes: Collection[str],
    count: int,
    max_bad_share: float,
    found: str = "audio files are bad so far",
    shown: int = SHOWN,
    option: str | None = "max_bad_share",
) -> None:
    """Refuse a data set of which too many files cannot be read.

    Args:
        causes: what is wrong with each bad file, with its name.
        count: files in all.
        max_bad_share: share of bad files in [0, 1] that is tolerated.
        found: what the message says of the bad ones.
        shown: bad files that the message names.
        option: the option that sets the share; None where there is none.

    Raises:
        ValueError: when more are bad.
    """
    if len(causes) > max_bad_share * count:
        more = f"; and {len(causes) - shown} more" if len(causes) > shown else ""
        raise ValueError(
            f"{len(causes)} of {count} {found}, more than the allowed share of {max_bad_share:g}"
            f"{f' ({option})' if option else ''}, replace or delete them: {'; '.join(list(causes)[:shown])}{more}"
        )
