"""Ask whether the Hugging Face hub answers, because libraries that fetch from it try again for a minute."""

import os

SECONDS = 3.0
"""The longest wait for the hub's answer, unless the user has set one."""
VARIABLE = "HF_HUB_ETAG_TIMEOUT"
"""Name of the setting of huggingface_hub for how long it waits for an answer."""


def is_offline() -> bool:
    """Tell whether the user has switched the hub off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_answers() -> bool:
    """Ask the hub once, and tell whether it answers."""
    from huggingface_hub import constants, get_session

    if is_offline():
        return False
    seconds = constants.HF_HUB_ETAG_TIMEOUT if os.environ.get(VARIABLE) else SECONDS
    try:
        get_session().head(constants.ENDPOINT, timeout=seconds, follow_redirects=False)
    # The hub's library has changed what it connects with, and each has errors of its own.
    except Exception:
        return False
    return True
