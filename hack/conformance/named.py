# Runs one of tlsfuzzer's scripts with a server name in each of its hellos, and ECDSA among the
# accepted signatures. The broker serves no client without a name, and its certificate has an ECDSA
# key. Most scripts have neither. python -c THIS SCRIPT [ARG...]
import random
import runpy
import sys

from tlslite.constants import ExtensionType, SignatureScheme
from tlslite.extensions import SNIExtension
from tlsfuzzer.messages import ClientHelloGenerator

ecdsa = SignatureScheme.ecdsa_secp256r1_sha256
plain = ClientHelloGenerator._generate_extensions
generate = ClientHelloGenerator.generate


def extensions(self, state):
    listed = plain(self, state)
    for e in listed:
        if e.extType == ExtensionType.signature_algorithms and getattr(e, "sigalgs", None) and ecdsa not in e.sigalgs:
            e.sigalgs = list(e.sigalgs) + [ecdsa]
    if any(e.extType == ExtensionType.server_name for e in listed):
        return listed
    return [SNIExtension().create(b"localhost")] + listed


def hello(self, state):
    if self.extensions is None and not self.ssl2:
        self.extensions = {}
    return generate(self, state)


ClientHelloGenerator._generate_extensions = extensions
ClientHelloGenerator.generate = hello
random.seed(16)  # scripts draw some of their cases
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
