import random
r = random.Random(42)
print(r.random(), r.randint(1, 100), r.sample(range(100), 5), r.gauss(0, 1), r.choices('abc', k=5))
random.seed('text'); print(random.random(), random.getrandbits(70), random.SystemRandom().random() < 1)
random.seed(); a = random.random(); random.seed(); print(a != random.random())
