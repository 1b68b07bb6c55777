#!/usr/bin/env bash
# The CI of a project with kernels of its own, whichever server runs it (docs/ci.md of OpAtlas). Exit status: 1 if a row
# failed or is slower.
#
#   kernels.sh compare REF     the kernels against those of a commit, sampled in turn -> $OUT/report.md
#   kernels.sh record          measures the kernels, and keeps the durations in the branch $BRANCH
#   kernels.sh weekly          the kernels against those of a week ago, and the steps of all recorded durations -> report.md
#   kernels.sh comment NUMBER  report.md as the one comment of a pull request of GitHub, which later reports replace
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"

KERNELS=${KERNELS:-kernels}       # a folder of kernels
ROWS=${ROWS:-rows}                # a database of their rows: {KernelType}.csv
MEASURE=${MEASURE:-opatlas bench} # or, for replays of the project: pytest FOLDER
SLOWER=${SLOWER:-5%}              # what fails
MODELS=${MODELS:-}                # a file of models: the slowest kernel's diagnosis gets the advice of one
BRANCH=${BRANCH:-opatlas-history}
OUT=${OUT:-opatlas-ci}            # emptied at each call: put it into .gitignore
NAME=$(basename "$KERNELS")
export GIT_AUTHOR_NAME=${GIT_AUTHOR_NAME:-OpAtlas} GIT_AUTHOR_EMAIL=${GIT_AUTHOR_EMAIL:-ci@localhost}
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL

# What failed, while the rest goes on.
failed=0

# measure IMPLEMENTATIONS: the rows of the project, in a new database.
measure() {
  rm -rf "$OUT/rows"
  mkdir "$OUT/rows"
  cp "$ROWS"/*.csv "$OUT/rows/"
  $MEASURE --database-path "$OUT/rows" --implementation "$1" --junitxml="$OUT/junit.xml" || failed=$?
}

compare() {
  local base=torch baseline=$OUT/rows
  if git rev-parse --quiet --verify "$1:$KERNELS" > /dev/null; then
    # The name of the folder is that of the baseline in the report.
    base=$OUT/before baseline="$OUT/rows/implementations/before-*"
    mkdir "$base"
    git archive "$1:$KERNELS" | tar -x -C "$base"
  fi
  measure "$base,$KERNELS"
  {
    printf '## %s of %s, before: %s\n\n' "$KERNELS" "$(git describe --always HEAD)" "$(git describe --always "$1")"
    # shellcheck disable=SC2086 # the pattern of the folder of a version
    opatlas compare $baseline "$OUT/rows/implementations/$NAME"-* --fail-slower "$SLOWER" --format markdown || failed=1
    printf '\n<details><summary>Where the most time is lost</summary>\n\n'
    # A model that does not answer is no fault of the kernels.
    opatlas diagnose "$OUT/rows/implementations/$NAME"-* --row 1 --output "$OUT/advice" --format markdown \
      ${MODELS:+--models "$MODELS"} || printf '\nThe diagnosis ended early: see the log.\n'
    printf '\n</details>\n\n'
  } > "$OUT/report.md"
}

record() {
  if ! git fetch --quiet origin "$BRANCH" 2> /dev/null; then
    git push --quiet origin "$(git commit-tree -m 'Durations of kernels' "$(git mktree < /dev/null)"):refs/heads/$BRANCH"
    git fetch --quiet origin "$BRANCH"
  fi
  git worktree add --quiet --detach "$OUT/history" FETCH_HEAD
  measure "$KERNELS"
  # All versions of the kernels, on whatever machine, in one database.
  opatlas combine "$OUT/history/$NAME" "$OUT/rows/implementations/$NAME"-* --mixed
  git -C "$OUT/history" add --all -- ':!*/journal'
  git -C "$OUT/history" commit --quiet -m "Durations of $(git rev-parse HEAD)"
  git -C "$OUT/history" push --quiet origin "HEAD:refs/heads/$BRANCH"
}

weekly() {
  local before
  before=$(git rev-list -1 --before='7 days ago' HEAD)
  compare "${before:-$(git rev-list --max-parents=0 HEAD | tail -n 1)}"
  record
  opatlas history "$OUT/history/$NAME" --fail-slower "$SLOWER" --format markdown >> "$OUT/report.md" || failed=1
}

comment() {
  local mark='<!-- opatlas -->' pull="repos/$GITHUB_REPOSITORY/issues" old
  # GitHub takes 65,536 characters.
  { printf '%s\n' "$mark"; head -c 60000 "$OUT/report.md"; } > "$OUT/comment.md"
  old=$(gh api --paginate "$pull/$1/comments" --jq ".[] | select(.body | startswith(\"$mark\")).id" | head -n 1)
  if [ -n "$old" ]; then
    gh api --method PATCH "$pull/comments/$old" -F "body=@$OUT/comment.md"
  else
    gh api --method POST "$pull/$1/comments" -F "body=@$OUT/comment.md"
  fi > /dev/null
}

publish() {
  if [ -f "$OUT/report.md" ]; then tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}" < "$OUT/report.md"; fi
}

case ${1:-} in
  compare | record | weekly)
    rm -rf "$OUT"
    mkdir -p "$OUT"
    git worktree prune
    trap publish EXIT
    "$@"
    exit "$failed"
    ;;
  comment) "$@" ;;
  *)
    sed -n '2,8p' "$0" >&2
    exit 2
    ;;
esac
