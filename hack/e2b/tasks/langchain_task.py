"""langchain-e2b's backend for deep agents: commands, files, edits and searches."""
import e2b
from langchain_e2b import E2BSandbox

with e2b.Sandbox.create() as sandbox:
    backend = E2BSandbox(sandbox=sandbox)
    got = backend.execute("uname -s && pwd")
    assert got.exit_code == 0 and got.output == "Linux\n/home/user\n", got
    assert backend.execute("sleep 30", timeout=1).exit_code == 124
    name = "/home/user/a/b.txt"
    assert not backend.write(name, "one\ntwo\nthree\n").error
    assert not backend.edit(name, "two", "2").error
    assert backend.read(name).file_data["content"].startswith("one\n2\n"), backend.read(name)
    assert backend.grep("three", "/home/user").matches[0]["line"] == 3
    assert backend.glob("**/*.txt", "/home/user").matches[0]["path"] == "a/b.txt"
    assert backend.ls("/home/user/a").entries[0]["path"] == name
    content = bytes(range(256))
    assert backend.upload_files([("/home/user/c.dat", content)])[0].error is None
    some, none = backend.download_files(["/home/user/c.dat", "/home/user/none"])
    assert some.content == content and none.error == "file_not_found", none
