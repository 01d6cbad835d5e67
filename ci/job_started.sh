#!/usr/bin/env bash
# The job-started hook of a GPU runner: lets a job begin only where this repository's default branch started it, by the
# clock or by hand. GitHub's runner calls it before every job. It and the file `repository` beside it, one line with
# owner/name and the branch, belong to root: no job, no workflow and no pull request can change them.
set -euo pipefail

refuse() {
  echo "::error::this runner takes no such job: $1"
  exit 1
}

read -r repository branch < "$(dirname "$0")/repository" || refuse "its file 'repository' cannot be read"
[ -n "$branch" ] || refuse "its file 'repository' should say owner/name and branch"
[ "${GITHUB_REPOSITORY:-}" = "$repository" ] || refuse "the repository is ${GITHUB_REPOSITORY:-unknown}"
[ "${GITHUB_REF:-}" = "refs/heads/$branch" ] || refuse "the ref is ${GITHUB_REF:-unknown}"
case "${GITHUB_EVENT_NAME:-}" in
  schedule | workflow_dispatch) ;;
  *) refuse "the event is ${GITHUB_EVENT_NAME:-unknown}" ;;
esac
case "${GITHUB_WORKFLOW_REF:-}" in
  "$repository/.github/workflows/nightly.yml@refs/heads/$branch") ;;
  "$repository/.github/workflows/bisect.yml@refs/heads/$branch") ;;
  *) refuse "the workflow is ${GITHUB_WORKFLOW_REF:-unknown}" ;;
esac
