import os, secrets, uuid
print(uuid.uuid5(uuid.NAMESPACE_DNS, 'example.org'), uuid.uuid4().version, uuid.uuid4() != uuid.uuid4(), len(secrets.token_hex(8)), len(os.urandom(5)), os.getrandom(3) != os.getrandom(3) or True)
