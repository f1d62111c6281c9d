"""A file system whose calls fail where a file says so: `rm_file` in $FAILING lets every removal fail."""

import os

import fsspec
from fsspec.implementations.local import LocalFileSystem


class RaisingFiles(LocalFileSystem):
    protocol = "raising"

    def _open(self, path, mode="rb", **options):
        refuse("write" if "w" in mode else "read")
        return super()._open(path, mode, **options)

    def rm_file(self, path):
        refuse("rm_file")
        super().rm_file(path)

    def find(self, path, **options):
        refuse("find")
        return super().find(path, **options)


def refuse(call):
    with open(os.environ["FAILING"]) as file:
        if call in file.read().split():
            raise ConnectionError(f"the object store does not {call}")


fsspec.register_implementation("raising", RaisingFiles, clobber=True)
