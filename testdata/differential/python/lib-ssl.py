import ssl
c = ssl.create_default_context()
print(c.verify_mode, c.check_hostname, c.minimum_version, ssl.OPENSSL_VERSION_INFO[:2], ssl.get_default_verify_paths().openssl_cafile, len(ssl.RAND_bytes(8)), ssl.HAS_TLSv1_3)
print(len([x['name'] for x in c.get_ciphers()]))
ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain('none.pem')
