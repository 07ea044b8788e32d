"""smolagents' E2BExecutor: state, a tool, an error and a final answer."""
from smolagents import tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor


@tool
def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: The number.
    """
    return 2 * n


executor = E2BExecutor([], AgentLogger(level=LogLevel.ERROR))
try:
    executor.send_tools({"double": double})
    executor.send_variables({"start": 20})
    out = executor("print('inside'); x = double(start) + 2; x")
    assert str(out.output) == "42" and "inside" in out.logs, out
    assert str(executor("x += 1; x").output) == "43"
    try:
        executor("1/0")
    except Exception as e:
        assert "ZeroDivisionError" in str(e), e
    else:
        raise AssertionError("no error")
    executor.send_tools({"final_answer": FinalAnswerTool()})
    out = executor("final_answer(x * 2)")
    assert out.is_final_answer and out.output == 86, out
finally:
    executor.cleanup()
