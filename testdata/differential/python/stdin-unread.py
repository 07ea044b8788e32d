print('did not read')
