def größe(): raise ValueError('日本語 \udc80')
größe()
