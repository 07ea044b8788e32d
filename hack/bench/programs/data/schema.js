// A small schema library, as programs bring one along.
const type = (check) => ({ check, parse(v) { const errors = check(v, 'value'); if (errors.length) throw new Error(errors.join('; ')); return v; } });
const simple = (name) => () => type((v, at) => (typeof v === name ? [] : [`${at}: ${name} wanted, ${typeof v} given`]));
exports.string = simple('string');
exports.number = simple('number');
exports.array = (of) => type((v, at) => (Array.isArray(v) ? v.flatMap((x, i) => of.check(x, `${at}[${i}]`)) : [`${at}: array wanted`]));
exports.object = (shape) => type((v, at) => Object.entries(shape).flatMap(([k, t]) => t.check(v?.[k], `${at}.${k}`)));
