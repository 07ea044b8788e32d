# Runs one of tlsfuzzer's scripts: python -c THIS SCRIPT [ARG...]. Adds a server name to each ClientHello,
# because the broker refuses clients without one. Adds ECDSA to the accepted signatures, because the
# broker's certificate has an ECDSA key. Most scripts do neither.
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
random.seed(16)  # scripts choose some of their cases at random
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
