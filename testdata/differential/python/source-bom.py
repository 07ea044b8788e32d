print("bom", open(__file__, "rb").read(3))
