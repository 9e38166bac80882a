# SPDX-License-Identifier: Apache-2.0
"""NeoTier in vLLM: what its configuration names by module path (docs/serving.md).

    "secondary_tiers": [{"type": "NeoTier", "module_path": "neotier.vllm", "tiers": "ssd=200G:file=/var/cache/neotier"}]
    {"kv_connector": "NeoTierConnector", "kv_connector_module_path": "neotier.vllm", "kv_role": "kv_both", ...}
"""
from .connector import NeoTierConnector
from .tier import NeoTier

__all__ = ["NeoTier", "NeoTierConnector"]
