# SPDX-License-Identifier: Apache-2.0
"""libneotier by cffi: its headers are the declarations, so that nothing is declared twice.

The library is, in this order: $NEOTIER_LIBRARY; the one that was built with this package; the system's.
"""
import os
import re

import cffi

HERE = os.path.dirname(os.path.abspath(__file__))
# Installed: beside this file. In a clone: where the sources have them.
HEADERS = [os.path.join(HERE, "include"), os.path.join(HERE, "..", "..", "userspace", "libneotier", "include")]
NAMES = ("neotier.h", "neotier_kv.h", "neotier_slots.h")

ffi = cffi.FFI()


def _declarations(text: str) -> str:
    """What cffi takes: no comments, no preprocessor, no linkage."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = text.replace("NEOTIER_API", "")
    return re.sub(r'extern "C" \{|^\}\s*$', "", text, flags=re.M)


def _load():
    for folder in HEADERS:
        if os.path.exists(os.path.join(folder, NAMES[0])):
            break
    else:
        raise ImportError(f"neotier: its headers are not at {HEADERS[0]}; install the package with 'pip install .' in a clone")
    texts = []
    for name in NAMES:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            texts.append(file.read())
        ffi.cdef(_declarations(texts[-1]))
    soname = "libneotier.so." + re.search(r"^#define NEOTIER_ABI (\d+)u$", texts[0], flags=re.M)[1]
    given = os.environ.get("NEOTIER_LIBRARY")
    own = os.path.join(HERE, soname)
    path = given or (own if os.path.exists(own) else soname)
    try:
        return ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f"neotier: {path} cannot be loaded ({error}); set NEOTIER_LIBRARY to a libneotier.so") from None


lib = _load()
