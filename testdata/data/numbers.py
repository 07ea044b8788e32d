# Linear algebra, random numbers, statistics and optimization.
import numpy as np
from scipy import integrate, interpolate, optimize, stats

a = np.array([[3.0, 1, 2], [1, 4, 0], [2, 0, 5]])
values, vectors = np.linalg.eigh(a)
assert np.allclose(vectors @ np.diag(values) @ vectors.T, a)
print(np.linalg.det(a).round(6), np.linalg.solve(a, [1, 2, 3]).round(4), np.linalg.matrix_rank(a))
rng = np.random.default_rng(42)
x = np.linspace(0, 10, 200)
y = 2.5 * x + 1 + rng.normal(0, 0.1, 200)
slope, intercept = np.polyfit(x, y, 1)
print(round(slope, 1), round(intercept, 0), rng.integers(0, 100, 5).shape)
print(np.random.RandomState(0).rand(3).round(6))
print(optimize.minimize(lambda p: (p[0] - 1) ** 2 + (p[1] + 2) ** 2, [0, 0]).x.round(4), round(optimize.brentq(np.cos, 1, 2), 6))
print(round(integrate.quad(np.exp, 0, 1)[0], 6), float(interpolate.CubicSpline([0, 1, 2], [0, 1, 4])(1.5).round(4)))
t = stats.ttest_ind([1, 2, 3, 4, 5], [2, 3, 4, 5, 7])
print(round(t.statistic, 4), round(t.pvalue, 4))
print(np.fft.rfft(np.sin(2 * np.pi * 3 * np.arange(32) / 32)).imag.round(6)[3], np.einsum('ij,jk->ik', a, a).trace())
