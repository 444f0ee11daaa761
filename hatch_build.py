"""Adds an SBOM to the wheel (PEP 770): Perkey and what it depends on, as CycloneDX 1.6.

The wheel contains no code of others, so the components are its declared dependencies, without
versions: the environment that it is installed into decides those. Nothing in it depends on time or
machine, so a build can be repeated byte for byte.
"""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from itertools import chain
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NAME = re.compile(r"[\w.-]+")


def bom(project: Any, version: str) -> dict[str, Any]:
    """The document, of the project's metadata."""
    name = project.name
    components = [
        _component(requirement, scope)
        for scope, requirements in (
            ("required", project.dependencies),
            ("optional", [*chain.from_iterable(project.optional_dependencies.values())]),
        )
        for requirement in requirements
    ]
    unique = {component["bom-ref"]: component for component in reversed(components)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name}=={version}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"license": {"id": project.license_expression}}],
            }
        },
        "components": sorted(unique.values(), key=lambda component: str(component["name"])),
        "dependencies": [
            {"ref": f"pkg:pypi/{name}@{version}", "dependsOn": sorted(unique)},
            *({"ref": ref} for ref in sorted(unique)),
        ],
    }


def _component(requirement: str, scope: str) -> dict[str, str]:
    found = _NAME.match(requirement)
    assert found is not None, requirement
    name = found.group().lower()
    purl = f"pkg:pypi/{name}"
    return {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "scope": scope}


class Sbom(BuildHookInterface[Any]):
    """Writes the document beside the build and names it to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built; `version` is the kind of build."""
        if self.target_name != "wheel" or version == "editable":
            return
        document = bom(self.metadata.core, self.metadata.version)
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "perkey.cdx.json"
        file.write_text(json.dumps(document, indent=1) + "\n")
        build_data["sbom_files"].append(str(file))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is written."""
        if self.target_name == "wheel" and version != "editable":
            self._folder.cleanup()
