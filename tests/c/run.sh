#!/bin/sh
# run.sh [plain|address|thread ...]: build csrc with each tests/c/test_*.c and run it, per sanitizer. Prints one line a test and a total.
# TESTS="tests/c/test_x.c ...": these only. A csrc/x.c without its tests/c/test_x.c is a failure.
# Each test's outcome also goes to the file $TEST_RESULTS (tests/results.py).
set -u
cd "$(dirname "$0")/../.." || exit 2
out=build/c; passed=0; failed=0; skipped=0
for source in csrc/*.c; do
  name=$(basename "$source" .c)
  [ -f "tests/c/test_$name.c" ] || {
    echo "FAIL $source has no test: write tests/c/test_$name.c"; failed=$((failed + 1))
    printf 'failed\t0\t%s\tthere is no tests/c/test_%s.c\n' "$source" "$name" >> "${TEST_RESULTS:-/dev/null}"
  }
done
for kind in "${@:-plain}"; do
  case $kind in
    plain) flags="-O2" ;;
    address) flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" ;;
    thread) flags="-O1 -g -fsanitize=thread" ;;
    *) echo "run.sh: unknown kind $kind (plain, address, thread)" >&2; exit 2 ;;
  esac
  mkdir -p "$out/$kind"
  flags="$flags -std=c11 -Wall -Wextra -Wshadow -Werror -fPIC -ftls-model=initial-exec -funwind-tables -pthread -Icsrc -Itests/c"
  rm -f "$out/$kind"/*.o
  for source in csrc/*.c; do ${CC:-cc} $flags -c "$source" -o "$out/$kind/$(basename "$source" .c).o" || exit 1; done
  # A library, as in Python: the accounting does not look at the object it is in.
  ${CC:-cc} $flags -shared "$out/$kind"/*.o -o "$out/$kind/libdwsr.so" || exit 1
  for library in tests/c/lib_*.c; do # that tests open
    [ ! -f "$library" ] || ${CC:-cc} $flags -shared -Wl,-z,relro,-z,now "$library" -o "$out/$kind/$(basename "$library" .c).so" || exit 1
  done
  for test in ${TESTS:-tests/c/test_*.c}; do
    name=$(basename "$test" .c)
    ${CC:-cc} $flags "$test" -L"$out/$kind" -ldwsr -Wl,-rpath,"$PWD/$out/$kind" -o "$out/$kind/$name.run" || exit 1
    echo "== $name ($kind)"
    timeout 1800 "$out/$kind/$name.run" > "$out/$kind/$name.log" 2>&1; code=$?
    cat "$out/$kind/$name.log"
    sed -nE "s#^(ok  |FAIL) (.*)#\\1\\t0\\t$test::\\2 ($kind)\\tits log: $out/$kind/$name.log#p" "$out/$kind/$name.log" |
      sed 's/^ok  /passed/; s/^FAIL/failed/' >> "${TEST_RESULTS:-/dev/null}"
    sed -nE "s#^skip ([^:]*): (.*)#skipped\\t0\\t$test::\\1 ($kind)\\t\\2#p" "$out/$kind/$name.log" >> "${TEST_RESULTS:-/dev/null}"
    passed=$((passed + $(grep -c '^ok  ' "$out/$kind/$name.log")))
    skipped=$((skipped + $(grep -c '^skip ' "$out/$kind/$name.log")))
    lines=$(grep -c '^FAIL' "$out/$kind/$name.log"); failed=$((failed + lines))
    [ $code -eq 0 ] || [ "$lines" -gt 0 ] || {
      echo "FAIL $name ended with code $code"; failed=$((failed + 1))
      printf 'failed\t0\t%s (%s)\tended with code %s\n' "$test" "$kind" "$code" >> "${TEST_RESULTS:-/dev/null}"
    }
  done
done
# Once more at the end, where a long log is cut last.
[ "$failed" -eq 0 ] || grep -HE '^FAIL|failed:|ERROR: |WARNING: ' "$out"/*/*.log | head -n 40
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
