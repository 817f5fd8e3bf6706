"""A kind of import contract: what a package may import of ours, and nothing else. Used by `lint-imports`."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """Everything below `source_modules` imports only itself and what is below `allowed_modules`."""

    source_modules = fields.ListField(subfield=fields.ModuleField())
    allowed_modules = fields.ListField(subfield=fields.ModuleField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        found = []
        for source in self.source_modules:
            allowed = [source.name, *(module.name for module in self.allowed_modules)]
            for module in sorted({source.name} | graph.find_descendants(source.name)):
                for imported in sorted(graph.find_modules_directly_imported_by(module)):
                    if not any(imported == name or imported.startswith(f"{name}.") for name in allowed):
                        found.append((module, imported))
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, imported in check.metadata["found"]:
            output.print_error(f"{module} may not import {imported}", bold=True)
