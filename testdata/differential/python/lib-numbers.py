import cmath, math, statistics
print(math.fsum([.1] * 10), math.comb(50, 25), math.isqrt(10**40), math.nextafter(1, 2), math.gamma(5.5), math.erf(0.3))
print(cmath.exp(1j), statistics.quantiles(range(20)), statistics.NormalDist(1, 2).cdf(0.3), (0.1 + 0.2).hex(), 1e22, 1e-7, 123456789.123456789)
print(divmod(-7, 3), -7 % 3, 7.5 // -2, pow(3, -1, 7), int('ff', 16), f'{1234567.891:,.2f} {255:#x} {0.00001234:g}', round(2.5), round(2.675, 2))
print((1).__add__(2), int.from_bytes(b'\1\2', 'little'), (300).to_bytes(2, 'big'), 10**5000 > 0)
str(10**5000)
