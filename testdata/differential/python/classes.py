import abc, dataclasses, enum, typing
@dataclasses.dataclass(order=True, frozen=True)
class D: a: int; b: list = dataclasses.field(default_factory=list, compare=False)
print(D(1), D(1) < D(2), dataclasses.asdict(D(3, [1])), dataclasses.replace(D(1), a=5))
class C(enum.IntFlag): A = 1; B = 2
print(C.A | C.B, repr(C(3)), enum.auto().__class__.__name__, list(C))
class S(str, enum.Enum): X = 'x'
print(S.X, f'{S.X}', S('x').value, typing.get_type_hints(D), typing.Optional[int], list[int] | None)
class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
D(1).a = 2 if False else Base()
