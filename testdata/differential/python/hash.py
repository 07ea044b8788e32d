import hashlib, hmac, zlib, binascii
print(hashlib.md5(b'x').hexdigest(), hashlib.sha3_256(b'x').hexdigest(), hashlib.blake2b(b'x', digest_size=8, key=b'k').hexdigest(), hashlib.new('sha512_256', b'x').hexdigest())
print(hmac.new(b'k', b'm', 'sha1').hexdigest(), hashlib.pbkdf2_hmac('sha256', b'p', b's', 1000).hex(), hashlib.scrypt(b'p', salt=b's', n=16, r=8, p=1).hex()[:20], zlib.crc32(b'x'), binascii.hexlify(b'\xff'))
print(sorted(hashlib.algorithms_guaranteed), hash(1), hash(2.5), hash((1, 2)), hash(None) is not None)
hashlib.new('nothing')
