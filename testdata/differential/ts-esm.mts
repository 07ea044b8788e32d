import type { Stats } from 'fs'; import { type Dirent, existsSync } from 'fs';
const s: Stats | Dirent | null = null; console.log(existsSync('/'), s, await Promise.resolve<number>(3));
