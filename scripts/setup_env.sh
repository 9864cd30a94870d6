# shellcheck shell=bash
# Sourced by run_tests.sh and run_demo.sh: makes .venv in the repository, installs the project, and
# sees to Java, which Spark runs on.
#
#   . scripts/setup_env.sh
#   setup_env test,spark      # the extras of setup.cfg, separated by commas
#   ensure_java               # finds Java or installs it; fails with one sentence if it cannot
#   "$PYTHON" -m pytest       # PYTHON is the Python of .venv from then on
#
# The first call takes a while. Later ones find the stamp of the last installation and do nothing,
# unless setup.cfg or pyproject.toml has changed since. To start over: rm -rf .venv
# To choose the Python that .venv is made with: PYTHON=/path/to/python3.12 ./run_tests.sh
# To choose the Java: JAVA_HOME=/path/to/jdk ./run_tests.sh

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

say() { printf '%s\n' "$*" >&2; }

# Prints the first Python that is new enough; fails when there is none.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    local python
    if ! python="$(find_python)"; then
        say "Fairlead needs Python 3.11 or newer, and none was found."
        say "Install one (Debian, Ubuntu: sudo apt install python3.11 python3.11-venv;"
        say "macOS: brew install python@3.12; anywhere: https://www.python.org/downloads),"
        say "or name it: PYTHON=/path/to/python3.11 $0"
        return 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "$python cannot make virtual environments: its venv module is not installed."
        say "Install it (Debian, Ubuntu: sudo apt install python3-venv) and run $0 again."
        return 1
    fi
    say "Making .venv with $("$python" --version 2>&1) (once) ..."
    "$python" -m venv --clear "$VENV" || return 1
    printf '*\n' > "$VENV/.gitignore"
}

# Installs the project with the given extras and leaves a stamp.
install_project() {
    local extras="$1" stamp="$2" sum="$3" log="$VENV/install-log.txt" size=""
    case ",$extras," in *,spark,*) size=" (pyspark alone is about 450 MB)" ;; esac
    say "Installing Fairlead with its [$extras] extras into .venv$size ..."
    if ! PIP_DISABLE_PIP_VERSION_CHECK=1 "$PYTHON" -m pip install --quiet --editable \
        "${ROOT}[$extras]" > "$log" 2>&1; then
        cat "$log" >&2
        say "The installation failed; the reason stands above. It needs the network: check it"
        say "and pip's settings, then run $0 again."
        return 1
    fi
    printf '%s\n' "$sum" > "$stamp"
}

# Succeeds if there is a stamp with the sum $2 for all of the extras $1, and perhaps for more.
is_installed() {
    local stamp have extra
    for stamp in "$VENV"/installed-*.txt; do
        [ "$(cat "$stamp" 2> /dev/null)" = "$2" ] || continue
        have="${stamp##*/installed-}"
        for extra in ${1//,/ }; do
            case ",${have%.txt}," in *",$extra,"*) ;; *) continue 2 ;; esac
        done
        return 0
    done
    return 1
}

setup_env() {
    local extras="${1:-test}" stamp sum
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        make_venv || return 1
    fi
    PYTHON="$VENV/bin/python"
    stamp="$VENV/installed-$extras.txt"
    sum="$(cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum)"
    if ! is_installed "$extras" "$sum"; then
        install_project "$extras" "$stamp" "$sum" || return 1
    fi
    export PATH="$VENV/bin:$PATH"
}

# Java.

JAVA_MIN=17
JAVA_ADVICE="Spark needs Java $JAVA_MIN or newer: install a JRE (Debian, Ubuntu: sudo apt-get install \
openjdk-17-jre-headless; Fedora: sudo dnf install java-21-openjdk-headless; macOS: brew install \
openjdk@17) or set JAVA_HOME to one, then run $0 again."

# Succeeds if $1 is a java that runs and is new enough. (Java 8 calls itself 1.8.)
java_is_new_enough() {
    local said pattern='version "([0-9]+)'
    said="$("$1" -version 2>&1 < /dev/null)" || return 1
    [[ $said =~ $pattern ]] && [ "${BASH_REMATCH[1]}" -ge "$JAVA_MIN" ]
}

# Sees to it that Spark will start a Java that is new enough: it takes the one of JAVA_HOME, and the
# one on the PATH only if JAVA_HOME is not set. JAVA_HOMES are the places where Javas are that are
# neither: beside an older one, or installed by brew. Fails when there is none.
use_java() {
    local home homes="${JAVA_HOMES-/usr/lib/jvm/* /opt/homebrew/opt/openjdk* \
/usr/local/opt/openjdk* /home/linuxbrew/.linuxbrew/opt/openjdk*}"
    if [ -n "${JAVA_HOME:-}" ]; then
        java_is_new_enough "$JAVA_HOME/bin/java" && return 0
        say "JAVA_HOME=$JAVA_HOME has no Java $JAVA_MIN or newer; looking for another one."
        unset JAVA_HOME
    fi
    java_is_new_enough java && return 0
    for home in $homes; do  # unquoted: these are patterns
        if java_is_new_enough "$home/bin/java"; then
            export JAVA_HOME="$home"
            return 0
        fi
    done
    return 1
}

# Runs a command as root, or fails: it never asks for a password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

may_be_root() { as_root true > /dev/null 2>&1; }

# Prints the packages of $1 that have a Java for Spark, the best one first. What is only called
# "default" comes last: on older systems it is older than what is needed.
java_packages() {
    case "$1" in
        apt-get) echo openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless ;;
        dnf | yum) echo java-17-openjdk-headless java-21-openjdk-headless \
            java-latest-openjdk-headless java-17-amazon-corretto-headless ;;
        zypper) echo java-17-openjdk-headless java-21-openjdk-headless ;;
        pacman) echo jre17-openjdk-headless jre21-openjdk-headless ;;
        apk) echo openjdk17-jre-headless openjdk21-jre-headless ;;
        brew) echo openjdk@17 openjdk@21 ;;
    esac
}

# Brings the lists of $1 up to date; those that are not named here do so by themselves.
refresh_packages() {
    case "$1" in
        apt-get) as_root apt-get -qq update ;;
        zypper) as_root zypper --non-interactive refresh ;;
        pacman) as_root pacman -Sy --noconfirm ;;
        *) return 1 ;;
    esac
}

# Installs the package $2 with $1, without a question.
install_package() {
    case "$1" in
        apt-get) as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
            apt-get -y -qq -o DPkg::Lock::Timeout=60 install --no-install-recommends "$2" ;;
        dnf | yum) as_root "$1" -y -q install "$2" ;;
        zypper) as_root zypper --non-interactive install --no-recommends "$2" ;;
        pacman) as_root pacman -S --noconfirm --needed "$2" ;;
        apk) as_root apk add --no-cache "$2" ;;
        brew) NONINTERACTIVE=1 brew install --quiet "$2" ;;
    esac
}

# Installs the first of $1's packages that exists and gives a Java that is new enough.
install_java_with() {
    local package
    for package in $(java_packages "$1"); do
        install_package "$1" "$package" && use_java && return 0
    done
    return 1
}

# Installs a Java with the system's package manager, if there is one that this user may use.
install_java() {
    local manager log="$VENV/java-log.txt"
    for manager in apt-get dnf yum zypper pacman apk brew; do
        command -v "$manager" > /dev/null 2>&1 || continue
        if [ "$manager" != brew ] && ! may_be_root; then
            continue
        fi
        say "No Java $JAVA_MIN or newer was found; installing one with $manager (once) ..."
        {
            install_java_with "$manager" ||
                { refresh_packages "$manager" && install_java_with "$manager"; }
        } < /dev/null > "$log" 2>&1 && return 0
        say "$manager could not install it; what it said is in $log"
    done
    return 1
}

ensure_java() {
    use_java && return 0
    install_java && return 0
    say "$JAVA_ADVICE"
    return 1
}
