kill -INT $$; echo not reached by bash
