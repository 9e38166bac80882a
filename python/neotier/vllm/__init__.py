# SPDX-License-Identifier: Apache-2.0
"""NeoTier in vLLM: what its configuration names by module path (docs/serving.md).

    "secondary_tiers": [{"type": "NeoTier", "module_path": "neotier.vllm", "tiers": "ssd=200G:file=/var/cache/neotier"}]
"""
from .tier import NeoTier

__all__ = ["NeoTier"]
