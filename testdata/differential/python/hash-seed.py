print(len({hash('a'), hash('a')}), sorted({'one', 'two', 'three'}), hash('') , list({3, 1, 2}))
