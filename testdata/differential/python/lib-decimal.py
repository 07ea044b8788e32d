from decimal import Decimal, getcontext, localcontext, ROUND_HALF_UP
from fractions import Fraction
getcontext().prec = 40
print(Decimal(2).sqrt(), Decimal('1.005').quantize(Decimal('.01'), ROUND_HALF_UP), Fraction(3, 7) + Fraction('0.25'))
with localcontext() as c:
    c.prec = 5; print(Decimal(1) / 7)
Decimal(1) / 0
