import unittest, doctest, unittest.mock
def add(a, b):
    """
    >>> add(1, 2)
    3
    """
    return a + b
class T(unittest.TestCase):
    def test_ok(self): self.assertEqual(add(1, 2), 3)
    def test_bad(self): self.assertEqual([1, 2], [1, 3])
    def test_mock(self):
        with unittest.mock.patch('os.getcwd', return_value='x'): import os; self.assertEqual(os.getcwd(), 'x')
    @unittest.skip('why')
    def test_skip(self): pass
print(doctest.testmod())
import io, re
out = io.StringIO(); r = unittest.TextTestRunner(out).run(unittest.defaultTestLoader.loadTestsFromTestCase(T)); print(re.sub(r'in [\d.]+s', 'in Ns', out.getvalue()), r)
